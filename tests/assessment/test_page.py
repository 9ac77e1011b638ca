from pathlib import Path

from neural_complexity.assessment.page import Figure, render
from neural_complexity.assessment.tables import Table


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    page = render(
        "Title <1>",
        "lead & more",
        [Table("T", ("a", "b"), (("x", "1"),))],
        [Figure(tmp_path / "a.png", "Picture", "what it shows")],
        {"seed": 3, "note": "</pre><script>"},
    )
    assert "data:image/png;base64,iVBORw==" in page
    for foreign in ("http:", "https:", "src='/", "<script", str(tmp_path)):
        assert foreign not in page
    assert "Title &lt;1&gt;" in page
    assert "&#34;seed&#34;: 3" in page

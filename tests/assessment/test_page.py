from pathlib import Path

from neural_complexity.assessment.page import Figure, render
from neural_complexity.assessment.tables import Table


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    page = render(
        "Title <1>",
        "lead & more",
        [Table("T", ("a", "b"), (("x & y", "1"),), "as <noted>")],
        [
            Figure(tmp_path / "a.png", "Picture", "what it shows"),
            Figure(b"\x89PNG", "Another", "the same"),
        ],
        {"seed": 3, "note": "</pre><script>"},
        warnings=["Beware <of it>"],
    )
    assert page.count("data:image/png;base64,iVBORw==") == 2
    assert "<td>x &amp; y</td>" in page
    assert "as &lt;noted&gt;" in page
    assert "<li>Beware &lt;of it&gt;</li>" in page
    for foreign in ("http:", "https:", "src='/", "<script", str(tmp_path)):
        assert foreign not in page
    assert "Title &lt;1&gt;" in page
    assert "&#34;seed&#34;: 3" in page

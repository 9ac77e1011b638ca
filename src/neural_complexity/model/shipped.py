"""The NCs that ship with the package; a module of its own as it loads at once."""

__all__ = ["SHIPPED"]

# By name, what each judges.
SHIPPED = {
    "digits": "scikit-learn's digits, as 64 pixels from 0 to 1; posterior head, calibrated",
    "omniglot": "drawn characters of any classes, few images of each; posterior head",
    "omniglot-direct": "drawn characters of ten classes, few images of each; the paper's head",
    "sinusoid": "regression of sinusoids from about ten points; posterior head",
    "sinusoid-direct": "regression of sinusoids from about ten points; the paper's head",
    "tables": "labels of any table, from some ten to some hundred rows; posterior head",
    "tables-regression": "numbers of any table, from some ten to some hundred rows; posterior head",
}

"""NC where models are trained: scikit-learn and Lightning."""

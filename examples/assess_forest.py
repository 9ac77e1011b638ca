"""How much worse will a random forest do on data that it has not seen? Takes about six minutes."""

from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split

from neural_complexity import meta_learn, split_tasks

X, y = load_digits(return_X_y=True)
X_tr, X_te, y_tr, y_te = train_test_split(X / 16, y, test_size=600, random_state=0)

# From the labelled part alone; NC is trained on networks and does not know forests.
nc = meta_learn(split_tasks(X_tr, y_tr), budget="5min")

forest = RandomForestClassifier(min_samples_leaf=3, random_state=0).fit(X_tr, y_tr)
report = nc.assess(forest, X_tr, y_tr, X_te)
print(report)

# The true values, for comparison.
true = log_loss(y_te, forest.predict_proba(X_te))
print(f"true test loss {true:.3f}, true accuracy {100 * forest.score(X_te, y_te):.1f} %")

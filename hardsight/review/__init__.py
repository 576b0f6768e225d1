"""Look at the suspects of a run and fix their labels: a local web app, and what was decided.

The package can be called: ``hardsight.review("run")`` opens the app.
"""

from hardsight.review._decisions import decisions as decisions
from hardsight.review._package import CallablePackage as CallablePackage
from hardsight.review._serve import Review as Review
from hardsight.review._serve import open_in_browser as open_in_browser
from hardsight.review._serve import review as review
from hardsight.review._suspects import Suspects as Suspects
from hardsight.review._suspects import suspects_of as suspects_of

"""Tables of the paper `example`: `table_1` draws `table-1` of paper.yaml."""

from __future__ import annotations

import pandas as pd

from recaps.report.results import Results
from recaps.report.statistics import sd


def table_1(results: Results) -> pd.DataFrame:
    """Return a row per variant: accuracy in percent, beside the published number."""
    rows = []
    for variant, settings in results.paper.variants.items():
        ours = results.metric(variant, "argmax-mnist")
        published = results.published.get((variant, "argmax-mnist"))
        row = {"routing": settings.title, "ours": ours.mean(), "sd": sd(ours), "published": published}
        rows.append(row | {"longest capsule": results.metric(variant, "longest").mean()})
    return pd.DataFrame(rows)

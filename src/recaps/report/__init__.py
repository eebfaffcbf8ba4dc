"""Claims, the scorecard, the HTML report, and the project's published record."""

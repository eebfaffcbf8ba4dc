"""Claims, scorecard, HTML report, published record, and the code that papers share to draw tables and figures."""

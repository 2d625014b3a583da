"""What people look at in a browser: the live page and report.html, made of report.json."""

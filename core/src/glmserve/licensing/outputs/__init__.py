"""Every form of a report: tables, Markdown, JSON, SBOMs and notices."""

"""One module for each table or figure of the papers: what they printed, what we measure, the verdict."""

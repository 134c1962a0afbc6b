"""Who is let in to the page, and what he may see."""

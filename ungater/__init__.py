"""The controller: watches, admits, assigns, ungates. The only writer of admissions."""

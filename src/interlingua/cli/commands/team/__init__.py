"""`interlingua team`: checks a team, draws it and runs it."""

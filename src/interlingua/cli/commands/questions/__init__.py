"""`interlingua questions`: the inbox."""

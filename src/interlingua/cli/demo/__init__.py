"""`interlingua demo`: the guided tour."""

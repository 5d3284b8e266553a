"""Remote programs that do what a test tells them. They know nothing of our code."""

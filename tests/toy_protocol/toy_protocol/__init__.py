"""A protocol in a package of its own: lines of JSON, over HTTP and over pipes."""

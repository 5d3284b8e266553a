"""The node: its peers, sessions, messages, tasks, and the runs behind them."""

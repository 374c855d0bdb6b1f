"""The SQL implementation that all SQL backends share; a backend adds a dialect and a driver."""

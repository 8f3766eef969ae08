"""What several figures of AlpaServe share: cases, settings, sweeps and the math behind them."""

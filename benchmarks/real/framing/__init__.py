"""Models prepared to look like relatives: strangers turned and arranged, models with copied rows, soups."""

"""What only a notebook shows: claims, predictions and progress, figures, panels, recordings."""

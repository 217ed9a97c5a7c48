"""Studies: a file that is expanded to searches, runs, comparisons, attacks and pages."""

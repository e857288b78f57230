"""An analysis as a page of HTML that needs no other file, no network and no script."""

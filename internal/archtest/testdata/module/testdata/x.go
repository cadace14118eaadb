package broken here

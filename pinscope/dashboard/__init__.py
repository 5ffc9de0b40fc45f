"""The pages, and the widgets they share. No measuring, no SQL, no arithmetic."""

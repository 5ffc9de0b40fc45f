"""The rules that several readings share, each with its limits: functions of plain numbers. Words stand elsewhere."""

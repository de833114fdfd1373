"""The e-mail rubric: five rewards, `email_set` which adds them up, and the reading of e-mails that they share."""

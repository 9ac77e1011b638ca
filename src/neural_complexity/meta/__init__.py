"""Where the loop closes: learners regularized by NC teach NC."""

"""Evidence from learners that did not see a block of the training years."""

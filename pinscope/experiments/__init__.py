"""One folder an experiment, the same five files in each; ``contract`` says what one is, ``registry`` lists them all."""

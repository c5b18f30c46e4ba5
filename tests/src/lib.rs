//! What the tests of the whole repository share.

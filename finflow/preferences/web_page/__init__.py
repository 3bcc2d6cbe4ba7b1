"""Web page on which a person answers pairs: questions, their charts, the answers kept, and the local server."""

"""The live page: files that a browser reads, without a build step; what they show is the API's."""

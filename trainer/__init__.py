"""The reference trainer: data, tensor, pipeline and expert parallel in one job."""

"""Pipeline schedules: ideal and measured bubbles."""

-- Publishes an event that changes no record.
-- KEYS: routes, which select the node of a Cluster. ARGV: channel, event.
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1

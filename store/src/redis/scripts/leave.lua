-- Removes a replica with all its records, and publishes an event.
-- KEYS: replica, routes, next routes, replicas. ARGV: id, channel, event.
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('SREM', KEYS[4], ARGV[1])
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1

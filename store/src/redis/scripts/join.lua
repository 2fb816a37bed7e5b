-- Replaces a replica's records by those that `stage` wrote, adds the replica, and publishes its heartbeat. Shared keys of
-- a wrong type are deleted.
-- KEYS: next routes, routes, replica, replicas, gone. ARGV: id, heartbeat, its TTL in ms, channel, event.
for key, kind in pairs({ [KEYS[4]] = 'set', [KEYS[5]] = 'hash' }) do
  local found = redis.call('TYPE', key).ok
  if found ~= 'none' and found ~= kind then redis.call('DEL', key) end
end
redis.call('RENAME', KEYS[1], KEYS[2])
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
redis.call('SADD', KEYS[4], ARGV[1])
redis.call('PUBLISH', ARGV[4], ARGV[5])
return 1

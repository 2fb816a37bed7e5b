-- Renews a replica's heartbeat and publishes it.
-- KEYS: replica, routes. ARGV: TTL of the heartbeat in ms, channel, event; for an audit also the TTL of the records in ms
-- and their number.
-- Returns 0 if Redis has lost the heartbeat or, in an audit, some of the records; else 1.
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[4] then
  if redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[5]) then return 0 end
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1

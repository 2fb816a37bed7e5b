-- Renews a replica's heartbeat and publishes it.
-- KEYS: replica, routes, disabled. ARGV: heartbeat, its TTL in ms, channel, event; for an audit also the TTL of the records in
-- ms, their number, and the version of the record of the kill switch that the replica has read.
-- Returns 0 if Redis has lost the heartbeat or, in an audit, some of the records; 2 if the audit found another record of the
-- kill switch; else 1.
if not redis.call('SET', KEYS[1], ARGV[1], 'XX', 'PX', ARGV[2]) then return 0 end
local result = 1
if ARGV[5] then
  if redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[6]) then return 0 end
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
  local stored = redis.pcall('GETRANGE', KEYS[3], 0, 31)
  if type(stored) ~= 'string' then stored = '!' end
  local version = stored == '' and '0' or string.match(stored, '^%[1,(%d+),') or '-1'
  if version ~= ARGV[7] then result = 2 end
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return result

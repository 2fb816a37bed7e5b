-- A replica lives. Refused (0) if Redis has lost its heartbeat or, when they are counted, some of its records.
-- KEYS: replica, routes. ARGV: life of the heartbeat in ms, channel, event, then, to count, the life of the records in
-- ms and their number.
if redis.call('PEXPIRE', KEYS[1], ARGV[1]) == 0 then return 0 end
if ARGV[4] then
  if redis.call('HLEN', KEYS[2]) ~= tonumber(ARGV[5]) then return 0 end
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
redis.call('PUBLISH', ARGV[2], ARGV[3])
return 1

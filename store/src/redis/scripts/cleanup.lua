-- Removes the records of a dead replica, and marks its agents as disconnected.
-- KEYS: replica, routes, replicas, gone. ARGV: id, now in seconds, TTL of gone in ms.
-- Returns 0 if the heartbeat has not expired yet; else 1, also if another replica did it first.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('SREM', KEYS[3], ARGV[1]) == 0 then return 1 end
local agents = redis.pcall('HKEYS', KEYS[2])
if not agents.err then
  for from = 1, #agents, 1000 do
    local gone = {}
    for i = from, math.min(from + 999, #agents) do
      if tonumber(agents[i]) then
        gone[#gone + 1] = agents[i]
        gone[#gone + 1] = ARGV[2]
      end
    end
    if #gone > 0 then redis.call('HSET', KEYS[4], unpack(gone)) end
  end
  redis.call('PEXPIRE', KEYS[4], ARGV[3])
end
redis.call('DEL', KEYS[2])
return 1

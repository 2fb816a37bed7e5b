-- Removes what a dead replica left behind; its agents are gone. Refused (0) while its heartbeat is there; 1 also if
-- somebody else was faster.
-- KEYS: replica, routes, replicas, gone. ARGV: id, now, life of gone in ms.
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
if redis.call('SREM', KEYS[3], ARGV[1]) == 0 then return 1 end
local agents = redis.pcall('HKEYS', KEYS[2])
if not agents.err then
  for from = 1, #agents, 1000 do
    local gone = {}
    for i = from, math.min(from + 999, #agents) do
      if agents[i] ~= 'generation' then
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

-- Renews the leases of a replica, by the rule of `LeaseTable` in store/src/leases.rs and the server's clock.
-- KEYS: leases. ARGV: id, TTL of a lease in ms, TTL of the key in ms; for each agent: its id, its tunnels, those that are open at the
-- replica, 1 if the replica may dial, 1 if it is reliable, and the epoch of the request.
-- Returns the number of tunnels that the replica may have, for each agent.
local key = KEYS[1]
local kind = redis.call('TYPE', key).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', key) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ttl = tonumber(ARGV[2])
local granted = {}
for i = 4, #ARGV, 6 do
  local agent, wanted, open = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local may_dial, reliable, epoch = ARGV[i + 3] == '1', ARGV[i + 4] == '1', tonumber(ARGV[i + 5])
  local held, newer, taken, least, others = 0, nil, 0, math.huge, {}
  for id, count, flag, expires, made in
    string.gmatch(redis.call('HGET', key, agent) or '', '(%x+)=(%d+),([01]),(%d+),(%d+);')
  do
    count, expires = tonumber(count), tonumber(expires)
    -- The upper bound limits how long a forged lease is valid.
    if expires > now and expires <= now + ttl then
      if id == ARGV[1] then
        held = count
        if tonumber(made) > epoch then newer = count end
      else
        taken = taken + count
        if flag == '1' then least = math.min(least, count) end
        others[#others + 1] = string.format('%s=%d,%s,%.0f,%s;', id, count, flag, expires, made)
      end
    end
  end
  local tunnels = may_dial and held or math.min(held, open)
  while may_dial and tunnels + taken < wanted and tunnels <= least do tunnels = tunnels + 1 end
  while tunnels > 0 and (tunnels + taken > wanted or tunnels > least + 1) do tunnels = tunnels - 1 end
  if newer then
    tunnels = newer
  else
    if wanted > 0 and (tunnels > 0 or reliable) then
      others[#others + 1] =
        string.format('%s=%d,%s,%.0f,%s;', ARGV[1], tunnels, ARGV[i + 4], now + ttl, ARGV[i + 5])
    end
    if #others == 0 then
      redis.call('HDEL', key, agent)
    else
      redis.call('HSET', key, agent, table.concat(others))
    end
  end
  granted[#granted + 1] = tunnels
end
redis.call('PEXPIRE', key, ARGV[3])
return granted

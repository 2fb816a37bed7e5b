-- Writes or removes the environments that an agent names, or returns those of all agents.
-- KEYS: environments. ARGV: nothing; or the agent, the TTL in ms and the record, which is '' to remove it.
-- Returns the records of at most 16 KiB, at most 10,000 of them.
local key = KEYS[1]
local kind = redis.call('TYPE', key).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', key) end
if ARGV[3] == '' then
  redis.call('HDEL', key, ARGV[1])
  return {}
elseif ARGV[3] then
  redis.call('HSET', key, ARGV[1], ARGV[3])
  redis.call('PEXPIRE', key, ARGV[2])
  return {}
end
local records = {}
for _, agent in ipairs(redis.call('HKEYS', key)) do
  if #records == 10000 then break end
  local record = redis.call('HGET', key, agent)
  if #record <= 16384 then records[#records + 1] = record end
end
return records

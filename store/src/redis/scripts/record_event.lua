-- Keeps an event as the latest one of its reference, if an agent has named its project.
-- KEYS: projects, events of the project. ARGV: project, reference, id, event, the most references, TTL in ms.
-- Returns the number of the event, 0 if it is the latest one already, or -1 if no agent has named the project.
-- A value is the number in 16 digits, the length of the id in 3 digits, the id and the event.
local projects, events = KEYS[1], KEYS[2]
local kind = redis.call('TYPE', projects).ok
if kind ~= 'zset' then
  if kind ~= 'none' then redis.call('DEL', projects) end
  return -1
end
if not redis.call('ZSCORE', projects, ARGV[1]) then return -1 end
kind = redis.call('TYPE', events).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', events) end
local field = 'r' .. ARGV[2]
local known = redis.call('HGET', events, field)
if known and string.sub(known, 17, 19 + #ARGV[3]) == string.format('%03d', #ARGV[3]) .. ARGV[3] then return 0 end
if not known and redis.call('HLEN', events) > tonumber(ARGV[5]) then
  local oldest, least
  local all = redis.call('HGETALL', events)
  for i = 1, #all, 2 do
    local number = string.sub(all[i + 1], 1, 16)
    if all[i] ~= 'last' and (not least or number < least) then oldest, least = all[i], number end
  end
  if oldest then redis.call('HDEL', events, oldest) end
end
local time = redis.call('TIME')
local number = time[1] * 1000 + math.floor(time[2] / 1000)
local last = tonumber(redis.call('HGET', events, 'last') or '') or 0
if last < 9e15 and number <= last then number = last + 1 end
redis.call('HSET', events, 'last', string.format('%.0f', number))
redis.call('HSET', events, field, string.format('%016.0f', number) .. string.format('%03d', #ARGV[3]) .. ARGV[3] .. ARGV[4])
redis.call('PEXPIRE', events, ARGV[6])
return number

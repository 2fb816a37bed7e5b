-- Appends events to the log, by the rule of `EventTable` in store/src/events.rs and the server's clock.
-- KEYS: log, keys of events, newest removed event. ARGV: the most events, the most of a source, the time for which they are kept in ms, the
-- most states that an agent has reported, and processes, and those of them that give way at once, TTL of states in ms, prefix of sources, of
-- states, of reported states and of processes, channel, announcement; for each event: its key, its source, its process or '', its number there,
-- subject or '', state, 1 if a first state is no event, the scope of the subject ('fleet', 'agent' or 'reported'), and the event.
-- Returns the number of events that were appended.
local log, keys, removed = KEYS[1], KEYS[2], KEYS[3]
local ttl = ARGV[3]
local function ensure(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then redis.call('DEL', key) end
end
ensure(log, 'stream')
ensure(keys, 'hash')
ensure(removed, 'string')
local function parse(id)
  local millis, sequence = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(millis or 0), tonumber(sequence or 0)
end
local function remove(id, fields)
  for i = 1, #fields, 2 do
    if fields[i] == 'k' then redis.call('HDEL', keys, fields[i + 1]) end
    if fields[i] == 's' then redis.pcall('LREM', ARGV[7] .. fields[i + 1], 1, id) end
  end
  redis.call('XDEL', log, id)
  local millis, sequence = parse(id)
  local before, number = parse(redis.call('GET', removed) or '')
  if millis > before or (millis == before and sequence > number) then redis.call('SET', removed, id) end
end
-- Some entries give way, in no order.
local function make_room(key)
  local length = redis.call('HLEN', key)
  if length > 2 * tonumber(ARGV[4]) then
    redis.call('DEL', key)
  elseif length >= tonumber(ARGV[4]) then
    for i, field in ipairs(redis.call('HKEYS', key)) do
      if i > tonumber(ARGV[5]) then break end
      redis.call('HDEL', key, field)
    end
  end
end
local function replace(key, field, value, is_limited)
  ensure(key, 'hash')
  local before = redis.call('HGET', key, field)
  if is_limited and not before then make_room(key) end
  redis.call('HSET', key, field, value)
  redis.call('PEXPIRE', key, ARGV[6])
  return before
end
local appended = 0
for i = 13, #ARGV, 9 do
  local key, source, process, subject, scope = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 4], ARGV[i + 7]
  local is_event = true
  if process ~= '' then
    local processes = ARGV[10] .. source
    ensure(processes, 'hash')
    local last = tonumber(redis.call('HGET', processes, process) or 0) or 0
    is_event = tonumber(ARGV[i + 3]) > last
    if is_event then replace(processes, process, ARGV[i + 3], true) end
  end
  is_event = is_event and redis.call('HEXISTS', keys, key) == 0
  if is_event and subject ~= '' then
    local is_reported = scope == 'reported'
    local states = (is_reported and ARGV[9] or ARGV[8]) .. (scope == 'fleet' and 'kas' or source)
    local before = replace(states, subject, ARGV[i + 5], is_reported)
    is_event = before ~= ARGV[i + 5] and (before or ARGV[i + 6] ~= '1')
  end
  if is_event then
    local id = redis.call('XADD', log, '*', 'k', key, 's', source, 'e', ARGV[i + 8])
    local millis = parse(id)
    if redis.call('EXISTS', removed) == 0 then redis.call('SET', removed, string.format('%.0f-0', millis - 1)) end
    redis.call('HSET', keys, key, id)
    local of_source = ARGV[7] .. source
    ensure(of_source, 'list')
    redis.call('RPUSH', of_source, id)
    redis.call('PEXPIRE', of_source, ttl)
    if redis.call('LLEN', of_source) > tonumber(ARGV[2]) then
      local oldest = redis.call('LPOP', of_source)
      local entry = redis.pcall('XRANGE', log, oldest, oldest)[1]
      if entry then remove(entry[1], entry[2]) end
    end
    for _ = 1, 200 do
      local entry = redis.call('XRANGE', log, '-', '+', 'COUNT', 1)[1]
      if redis.call('XLEN', log) <= tonumber(ARGV[1]) and parse(entry[1]) >= millis - ttl then break end
      remove(entry[1], entry[2])
    end
    appended = appended + 1
  end
end
if appended > 0 then
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl) end
  redis.call('PUBLISH', ARGV[11], ARGV[12])
end
return appended

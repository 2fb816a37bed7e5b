-- Claims, moves or releases a cursor, by the rule of `CursorTable` in store/src/cursors.rs and the server's clock.
-- KEYS: cursors. ARGV: name, id of the replica, TTL of a claim in ms, TTL of the key in ms, then 'claim', the position at which a new cursor
-- begins, and the time in ms after which an unused one begins anew; or 'move' and the position; or 'release'.
-- Returns the position of the cursor; '' if the replica has not claimed it.
local key, name, own = KEYS[1], ARGV[1], ARGV[2]
local kind = redis.call('TYPE', key).ok
if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', key) end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local holder, expires, millis, sequence =
  string.match(redis.call('HGET', key, name) or '', '^(%x*) (%d+) (%d+)-(%d+)$')
expires = tonumber(expires or 0)
-- The upper bound limits how long a forged claim is valid.
local others = holder and holder ~= '' and holder ~= own and expires > now and expires <= now + ARGV[3]
if others then return '' end
local position = holder and millis .. '-' .. sequence
if ARGV[5] == 'claim' then
  if not holder or now > expires + ARGV[7] then position = ARGV[6] end
  holder, expires = own, now + ARGV[3]
elseif holder ~= own then
  return ''
elseif ARGV[5] == 'move' then
  local to, number = string.match(ARGV[6], '^(%d+)-(%d+)$')
  to, number, millis, sequence = tonumber(to), tonumber(number), tonumber(millis), tonumber(sequence)
  if to > millis or (to == millis and number > sequence) then position = ARGV[6] end
else
  holder, expires = '', now
end
redis.call('HSET', key, name, string.format('%s %.0f %s', holder, expires, position))
redis.call('PEXPIRE', key, ARGV[4])
return position
